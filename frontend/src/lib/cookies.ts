/** Django's CSRF token: the cookie is readable so that the header can repeat it. */
export function csrfToken(): string {
  const match = /(?:^|;\s*)csrftoken=([^;]+)/.exec(document.cookie);
  return match?.[1] ?? "";
}
