import { findCriu } from "@holdfast/drivers/oci";

const criu = await findCriu();
if ("missing" in criu) console.warn(`Memory standby can't be tested here: ${criu.missing}. ${criu.fix}`);

/** True if this host can save memory to disk. */
export const memoryStandby = "path" in criu;
