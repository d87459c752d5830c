import { Anchor, type AnchorProps, Button, type ButtonProps } from "@mantine/core";
import { createLink } from "@tanstack/react-router";
import { forwardRef } from "react";

/** Mantine's looks on the router's typed link. */
export const TextLink = createLink(
  forwardRef<HTMLAnchorElement, Omit<AnchorProps, "href">>(function TextLink(props, ref) {
    return <Anchor ref={ref} {...props} />;
  }),
);

export const LinkButton = createLink(
  forwardRef<HTMLAnchorElement, Omit<ButtonProps, "component">>(function LinkButton(props, ref) {
    return <Button ref={ref} component="a" {...props} />;
  }),
);
