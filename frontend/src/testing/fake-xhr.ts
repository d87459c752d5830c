/** XMLHttpRequest at its boundary: jsdom reports no upload progress, so a test does. */
export class FakeXhr {
  private static made: FakeXhr[] = [];
  readonly headers: Record<string, string> = {};
  readonly upload: { onprogress?: (event: { loaded: number; total: number }) => void } = {};
  url = "";
  status = 0;
  responseText = "";
  form = new FormData();
  onload?: () => void;
  onerror?: () => void;
  onabort?: () => void;

  static forget(): void {
    FakeXhr.made = [];
  }

  static last(): FakeXhr {
    const last = FakeXhr.made.at(-1);
    if (!last) throw new Error("nothing was sent");
    return last;
  }

  open(_method: string, url: string): void {
    this.url = url;
  }

  setRequestHeader(name: string, value: string): void {
    this.headers[name] = value;
  }

  send(form: FormData): void {
    this.form = form;
    FakeXhr.made.push(this);
  }

  abort(): void {
    this.onabort?.();
  }

  progress(loaded: number, total: number): void {
    this.upload.onprogress?.({ loaded, total });
  }

  answer(status: number, body: unknown): void {
    this.status = status;
    this.responseText = JSON.stringify(body);
    this.onload?.();
  }
}
