import {
  ActionIcon,
  Alert,
  Badge,
  Button,
  createTheme,
  type MantineColorsTuple,
  Modal,
  Paper,
  Skeleton,
  Table,
  Tooltip,
} from "@mantine/core";

/** The green of a graft that has taken. */
const graft: MantineColorsTuple = [
  "#edf7f1",
  "#d8eee1",
  "#b3ddc5",
  "#8acaa6",
  "#66b98b",
  "#45a672",
  "#33925f",
  "#267a4e",
  "#1f6b48",
  "#16533a",
];

const gray: MantineColorsTuple = [
  "#f8f9f7",
  "#f1f3f0",
  "#e6e9e5",
  "#d8dcd7",
  "#c3c9c3",
  "#a3aba4",
  "#7c857e",
  "#5b645e",
  "#3f4742",
  "#262c28",
];

const dark: MantineColorsTuple = [
  "#d3d9d5",
  "#b3bbb6",
  "#8b958f",
  "#68726c",
  "#3a443f",
  "#2c3531",
  "#232b27",
  "#181e1b",
  "#121714",
  "#0c100e",
];

export const theme = createTheme({
  primaryColor: "graft",
  primaryShade: { light: 8, dark: 6 },
  colors: { graft, gray, dark },
  autoContrast: true,
  luminanceThreshold: 0.35,
  white: "#ffffff",
  black: "#17201b",
  defaultRadius: 8,
  fontFamily: "'Inter Variable', system-ui, -apple-system, 'Segoe UI', sans-serif",
  fontFamilyMonospace: "'JetBrains Mono Variable', ui-monospace, SFMono-Regular, Menlo, monospace",
  fontSizes: { xs: "0.75rem", sm: "0.8125rem", md: "0.875rem", lg: "1rem", xl: "1.125rem" },
  headings: {
    fontWeight: "620",
    sizes: {
      h1: { fontSize: "1.375rem", lineHeight: "1.3" },
      h2: { fontSize: "1.0625rem", lineHeight: "1.4" },
      h3: { fontSize: "0.9375rem", lineHeight: "1.4" },
    },
  },
  cursorType: "pointer",
  components: {
    ActionIcon: ActionIcon.extend({ defaultProps: { variant: "subtle", color: "gray" } }),
    Alert: Alert.extend({ defaultProps: { variant: "light", p: "sm" } }),
    Badge: Badge.extend({
      defaultProps: { variant: "light", radius: "sm", tt: "none", fw: 550 },
    }),
    Button: Button.extend({ defaultProps: { size: "sm" } }),
    Modal: Modal.extend({
      defaultProps: {
        centered: true,
        radius: 12,
        overlayProps: { backgroundOpacity: 0.35, blur: 2 },
        styles: { title: { fontWeight: 620, fontSize: "1rem" } },
      },
    }),
    Paper: Paper.extend({ defaultProps: { withBorder: true, radius: 10 } }),
    Skeleton: Skeleton.extend({ defaultProps: { radius: 6 } }),
    Table: Table.extend({ defaultProps: { verticalSpacing: 9, horizontalSpacing: "md" } }),
    Tooltip: Tooltip.extend({ defaultProps: { openDelay: 250, withArrow: true, fz: "xs" } }),
  },
});
