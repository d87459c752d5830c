import "@testing-library/jest-dom/vitest";
import { cleanup, configure } from "@testing-library/react";
import { afterAll, afterEach, beforeAll, vi } from "vitest";
import { server } from "./server";

// What jsdom has not and Mantine or recharts ask for.
window.matchMedia = (query: string) =>
  ({
    matches: false,
    media: query,
    onchange: null,
    addEventListener: vi.fn(),
    removeEventListener: vi.fn(),
    dispatchEvent: () => false,
  }) as Partial<MediaQueryList> as MediaQueryList;

class NoResizeObserver implements ResizeObserver {
  observe(): void {
    // Nothing is laid out, so nothing changes its size.
  }
  unobserve(): void {
    // See observe.
  }
  disconnect(): void {
    // See observe.
  }
}
window.ResizeObserver = NoResizeObserver;
Object.defineProperty(document, "fonts", { value: new EventTarget() });
window.HTMLElement.prototype.scrollIntoView = vi.fn();
window.scrollTo = vi.fn();

// No style sheet is loaded, so whether something is hidden by one cannot be told; asking costs seconds.
configure({ defaultHidden: true, asyncUtilTimeout: 15_000 });

beforeAll(() => server.listen({ onUnhandledRequest: "error" }));
afterEach(() => {
  cleanup();
  server.resetHandlers();
  document.cookie = "csrftoken=; max-age=0";
});
afterAll(() => server.close());
