import {
  type CapabilityName,
  type Driver,
  type DriverCapabilities,
  requireCapability,
} from "@holdfast/engine";

/** Returns the object with some methods replaced. */
export const replacing = <Target extends object>(target: Target, methods: Partial<Target>): Target =>
  new Proxy(target, {
    get(_, key) {
      if (Object.hasOwn(methods, key)) return Reflect.get(methods, key);
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });

/** Returns the driver with some members of one of its capabilities replaced. */
export function replacingCapability<Name extends CapabilityName>(
  driver: Driver,
  name: Name,
  change: (
    capability: NonNullable<DriverCapabilities[Name]>,
  ) => Partial<NonNullable<DriverCapabilities[Name]>>,
): Driver {
  const capability = requireCapability(driver, name);
  const changed = replacing<NonNullable<DriverCapabilities[Name]>>(capability, change(capability));
  return replacing(driver, { capabilities: { ...driver.capabilities, [name]: changed } });
}
