"""Programs that stay alive while their server's data is restored from a backup."""
