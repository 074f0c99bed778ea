export interface Point {
  x: number;
  y: number;
}

/** Returns the slope of the least-squares line through the points; 0 if there is no such line. */
export function slopeOf(points: readonly Point[]): number {
  const { xx, xy } = spread(points);
  return xx === 0 ? 0 : xy / xx;
}

/** Returns the coefficient of determination (R²): 1 if all points are on one line, 0 if a line explains nothing. */
export function fitOf(points: readonly Point[]): number {
  const { xx, xy, yy } = spread(points);
  return xx === 0 || yy === 0 ? 0 : (xy * xy) / (xx * yy);
}

/** Returns the share of steps between consecutive points in which the value does not fall. */
export function risingShare(points: readonly Point[]): number {
  if (points.length < 2) return 0;
  const rising = points.slice(1).filter(({ y }, index) => y >= (points[index]?.y ?? y));
  return rising.length / (points.length - 1);
}

function spread(points: readonly Point[]): { xx: number; xy: number; yy: number } {
  const count = Math.max(1, points.length);
  const meanX = points.reduce((sum, { x }) => sum + x, 0) / count;
  const meanY = points.reduce((sum, { y }) => sum + y, 0) / count;
  let [xx, xy, yy] = [0, 0, 0];
  for (const { x, y } of points) {
    xx += (x - meanX) ** 2;
    xy += (x - meanX) * (y - meanY);
    yy += (y - meanY) ** 2;
  }
  return { xx, xy, yy };
}
