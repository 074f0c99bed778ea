/** The same object with some methods replaced. */
export const replacing = <Target extends object>(target: Target, methods: Partial<Target>): Target =>
  new Proxy(target, {
    get(_, key) {
      if (Object.hasOwn(methods, key)) return Reflect.get(methods, key);
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
