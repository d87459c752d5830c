import { Input, NumberInput, SimpleGrid } from "@mantine/core";
import type { UseFormReturnType } from "@mantine/form";
import { LIMITS, type LimitValues } from "../limits";

interface LimitFieldsProps<Values extends { limits: LimitValues }> {
  form: UseFormReturnType<Values>;
}

export function LimitFields<Values extends { limits: LimitValues }>(
  props: LimitFieldsProps<Values>,
) {
  return (
    <Input.Wrapper
      label="Limits of its own"
      description="They hold beside the tenant’s: the tightest answers. Empty: none."
      labelElement="div"
    >
      <SimpleGrid cols={{ base: 2, xs: 3 }} spacing="sm" mt={6}>
        {LIMITS.map(({ name, label, isMoney }) => (
          <NumberInput
            key={name}
            label={label}
            placeholder="no limit"
            min={isMoney ? 0 : 1}
            allowDecimal={isMoney ?? false}
            decimalScale={isMoney ? 2 : 0}
            prefix={isMoney ? "$" : ""}
            allowNegative={false}
            thousandSeparator=","
            hideControls
            {...props.form.getInputProps(`limits.${name}`)}
          />
        ))}
      </SimpleGrid>
    </Input.Wrapper>
  );
}
