// The JSON sub-protocol over one WebSocket: requests and their replies, pushes and the credit for them.

const SUBPROTOCOL = "journal-json.v1";
const encoder = new TextEncoder();

/** Bytes that the node may send before the page has shown them. */
export const CREDIT_BYTES = 256 * 1024;

export class Stream {
  #socket;
  #waiting = new Map();
  #lastId = 0;
  #consumed = 0;
  #paused = false;

  /** `pushed(message)` takes the messages of a tail, `closed()` is called once at the end. */
  constructor(url, { pushed, closed }) {
    this.#socket = new WebSocket(url, SUBPROTOCOL);
    this.#socket.addEventListener("message", (event) => this.#take(event.data, pushed));
    this.#socket.addEventListener("close", () => {
      for (const { reject } of this.#waiting.values()) reject(new Error("the connection is lost"));
      this.#waiting.clear();
      closed();
    });
    this.opened = new Promise((resolve) => this.#socket.addEventListener("open", resolve, { once: true }));
  }

  async call(op, fields) {
    await this.opened;
    this.#lastId += 1;
    const id = this.#lastId;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#send({ id, op, ...fields });
    });
  }

  #send(message) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #take(text, pushed) {
    const message = JSON.parse(text);
    if ("tail" in message && "event" in message) {
      const sizeBytes = message.event === "records" || message.event === "unreadable" ? encoder.encode(text).length : 0;
      pushed(message, sizeBytes);
      return;
    }
    const waiting = this.#waiting.get(message.id);
    this.#waiting.delete(message.id);
    if (waiting === undefined) return;
    if (message.error) waiting.reject(Object.assign(new Error(message.error.message), { code: message.error.code }));
    else waiting.resolve(message.result);
  }

  /** Note that a message was shown: the node may send as many bytes more, at once or after a pause. */
  used(tail, sizeBytes) {
    this.#consumed += sizeBytes;
    if (this.#paused || this.#consumed === 0) return;
    this.#send({ op: "credit", tail, bytes: this.#consumed });
    this.#consumed = 0;
  }

  /** During a pause no more is requested: the node waits and keeps the records. */
  pause(tail, paused) {
    this.#paused = paused;
    this.used(tail, 0);
  }

  close() {
    this.#socket.close();
  }
}
