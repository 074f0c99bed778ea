type Listener = Parameters<AbortSignal["addEventListener"]>[1];

/**
 * Counts timers and abort listeners, so that a test can detect leaks. `timers` is the number of the process's pending
 * timers. `listeners` is the largest number of abort listeners on one signal: a leak shows there, because listeners
 * accumulate on a long-lived signal.
 */
export function countWaiters() {
  const { addEventListener, removeEventListener } = EventTarget.prototype;
  const bySignal = new Map<EventTarget, Set<Listener>>();
  EventTarget.prototype.addEventListener = function (this: EventTarget, type, listener, options) {
    if (this instanceof AbortSignal && type === "abort") {
      const listeners = bySignal.get(this) ?? new Set();
      bySignal.set(this, listeners.add(listener));
    }
    return addEventListener.call(this, type, listener, options);
  };
  EventTarget.prototype.removeEventListener = function (this: EventTarget, type, listener, options) {
    if (type === "abort") bySignal.get(this)?.delete(listener);
    return removeEventListener.call(this, type, listener, options);
  };
  return {
    listeners: () => Math.max(0, ...[...bySignal.values()].map(({ size }) => size)),
    timers: () => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length,
    [Symbol.dispose]() {
      EventTarget.prototype.addEventListener = addEventListener;
      EventTarget.prototype.removeEventListener = removeEventListener;
    },
  };
}
