import { readdirSync } from "node:fs";
import reactHooks from "eslint-plugin-react-hooks";
import tseslint from "typescript-eslint";

const features = readdirSync(new URL("./src/features", import.meta.url));
const SHARED_UP = { group: ["@/app/*", "@/features/*"], message: "shared code knows no page" };
const LEAVES = { group: ["../../*"], message: "leave a folder by its @/ name" };

function zone(files, ...patterns) {
  return { files, rules: { "no-restricted-imports": ["error", { patterns }] } };
}

// The arrow is {lib, components, config} → features → app; one feature never knows another.
const zones = [
  zone(["src/{lib,components,config}/**"], SHARED_UP, LEAVES),
  ...features.map((name) =>
    zone(
      [`src/features/${name}/**`],
      { group: ["@/app/*"], message: "features know no page" },
      {
        group: ["@/features/*", `!@/features/${name}`],
        message: "a feature imports no other feature: compose them in app/",
      },
      LEAVES,
    ),
  ),
];

export default tseslint.config(
  { ignores: ["dist", "src/lib/schema.gen.ts"] },
  ...tseslint.configs.strictTypeChecked,
  {
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname },
    },
    plugins: { "react-hooks": reactHooks },
    rules: {
      ...reactHooks.configs.recommended.rules,
      "@typescript-eslint/no-explicit-any": "error",
      "@typescript-eslint/consistent-type-imports": "error",
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      "@typescript-eslint/no-misused-promises": [
        "error",
        { checksVoidReturn: { attributes: false } },
      ],
      // TanStack Router's redirect() and notFound() are thrown, not returned.
      "@typescript-eslint/only-throw-error": "off",
      "max-lines": ["error", 200],
      "no-console": "error",
      eqeqeq: "error",
    },
  },
  ...zones,
  { files: ["eslint.config.js"], ...tseslint.configs.disableTypeChecked },
);
