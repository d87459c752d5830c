import { useEffect } from "react";

export function useTitle(...parts: string[]): void {
  const title = [...parts, "Grafthouse"].join(" · ");
  useEffect(() => {
    document.title = title;
  }, [title]);
}
