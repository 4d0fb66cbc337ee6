// Runs every check of a client and prints what each came to: null, or the error's text.

export async function report(checks) {
  const results = {};
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      results[name] = null;
    } catch (error) {
      results[name] = String(error?.stack ?? error);
    }
  }
  console.log(JSON.stringify(results));
}

export const weather = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Oslo"] }, days: { type: "integer", maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};
