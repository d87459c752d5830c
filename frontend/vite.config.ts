import react from "@vitejs/plugin-react";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

// `npm run dev` proxies to a running web process; the built app is served by it, same origin.
const server = process.env.GRAFTHOUSE_URL ?? "http://127.0.0.1:8000";

export default defineConfig({
  base: "/",
  plugins: [react()],
  resolve: { alias: { "@": fileURLToPath(new URL("./src", import.meta.url)) } },
  server: {
    proxy: {
      "/api": server,
      "/admin": server,
      "/static": server,
      "/v1": server,
      "/ws": { target: server, ws: true },
    },
  },
  build: {
    outDir: "dist",
    assetsDir: "assets",
    target: "es2022",
    rolldownOptions: {
      output: {
        // What changes with a release is apart from what does not: a browser keeps the rest.
        codeSplitting: {
          groups: [
            { name: "react", test: /node_modules\/(react|react-dom|scheduler)\// },
            { name: "mantine", test: /node_modules\/(@mantine|@floating-ui)\// },
            { name: "tanstack", test: /node_modules\/(@tanstack|zod)\// },
          ],
        },
      },
    },
  },
  test: {
    environment: "jsdom",
    environmentOptions: { jsdom: { url: "http://localhost:3000/" } },
    globals: true,
    setupFiles: ["src/testing/setup.ts"],
    css: false,
    maxWorkers: 2,
    testTimeout: 60_000,
  },
});
