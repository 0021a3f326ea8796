"""Whatever a version can say comes back as it was said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.mqtt_codec import Decoder, Packet, Version, encode, encode_acknowledgements, encode_pubacks
from broker_adapter.mqtt_codec.packets import Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.mqtt.codec.strategies import Sender, connects, packet_ids, packets, publishes, versions

CONVERSATIONS: list[tuple[Version, Sender]] = [
    (version, sender) for version in Version for sender in ("client", "server")
]


@pytest.mark.parametrize(("version", "sender"), CONVERSATIONS)
@given(data=st.data())
def test_packets_come_back_as_they_were(version: Version, sender: Sender, data: st.DataObject) -> None:
    sent = data.draw(st.lists(packets(version, sender), min_size=1, max_size=4))
    written = b"".join(encode(packet, version) for packet in sent)
    assert Decoder(of=sender, version=version).receive(written) == sent


@given(connects(), st.data())
def test_connect_determines_how_later_packets_are_read(connect: Connect, data: st.DataObject) -> None:
    following = data.draw(publishes(connect.version, "client"))
    decoder = Decoder()
    assert decoder.version is None
    written = encode(connect, connect.version) + encode(following, connect.version)
    assert decoder.receive(written) == [connect, following]
    assert decoder.version is connect.version


@given(versions, st.data())
def test_an_encoded_packet_is_encoded_again_to_the_same_bytes(version: Version, data: st.DataObject) -> None:
    written = encode(data.draw(packets(version, "server")), version)
    [packet] = Decoder(of="server", version=version).receive(written)
    assert encode(packet, version) == written


@given(publishes(Version.V5, "server").filter(lambda packet: packet.topic != ""))
def test_version_311_leaves_out_what_it_does_not_have(sent: Publish) -> None:
    [there] = Decoder(of="server", version=Version.V311).receive(encode(sent, Version.V311))
    bare = Publish(sent.topic, sent.payload, sent.qos, sent.retain, sent.dup, sent.packet_id)
    assert there == bare


@pytest.mark.parametrize("cls", [Puback, Pubrec, Pubrel, Pubcomp])
@given(ids=st.lists(packet_ids, max_size=20), version=versions)
def test_many_acknowledgements_at_once_are_many_single_ones(
    cls: type[Puback | Pubrec | Pubrel | Pubcomp], ids: list[int], version: Version
) -> None:
    expected: list[Packet] = [cls(packet_id) for packet_id in ids]
    written = encode_acknowledgements(cls, ids)
    assert written == b"".join(encode(packet, version) for packet in expected)
    assert Decoder(version=version).receive(written) == expected
    assert encode_pubacks(ids) == encode_acknowledgements(Puback, ids)
