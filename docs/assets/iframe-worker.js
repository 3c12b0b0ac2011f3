/* A Worker for pages that are opened as files, where browsers refuse real ones: the script runs in a hidden frame.
   Material's search asks for `parent.IFrameWorker` to find its own place. */
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inner = frame.contentWindow;
      this.waiting = [];
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inner.importScripts = (...scripts) =>
        scripts.reduce((before, script) => before.then(() => this.load(script)), Promise.resolve());
      this.load(url).then(() => {
        const ready = this.waiting;
        this.waiting = null;
        ready.forEach((data) => this.postMessage(data));
      });
    }
    load(url) {
      const script = this.inner.document.createElement("script");
      const loaded = new Promise((done, failed) => { script.onload = done; script.onerror = failed; });
      script.src = url;
      this.inner.document.body.appendChild(script);
      return loaded;
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inner.dispatchEvent(new MessageEvent("message", { data }));
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
}
