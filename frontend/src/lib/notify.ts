import { notifications } from "@mantine/notifications";
import { messageOf } from "./errors";

export function notifyDone(title: string, message?: string): void {
  notifications.show({ color: "graft", title, message, autoClose: 5_000 });
}

export function notifyProblem(title: string, message: string): void {
  notifications.show({ color: "red", title, message, autoClose: 10_000 });
}

export function notifyError(title: string, error: unknown): void {
  notifyProblem(title, messageOf(error));
}
