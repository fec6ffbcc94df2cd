// Graphile Worker: the same protocol as program.py. The option is "default" or "batches": what its
// documentation gives for the highest throughput. It deletes a job that is done.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { setTimeout: sleep } = require("node:timers/promises");
const { Logger, makeWorkerUtils, run, runOnce } = require("graphile-worker");

const CHUNK = 1000;
const jobs = Number(process.env.PEERS_JOBS);
const pause = Number(process.env.PEERS_PAUSE);
const connectionString = process.env.PEERS_URL;

const times = new BigUint64Array(jobs);
const counts = new Uint8Array(jobs);
const note = (number) => {
  counts[number] += 1;
  times[number] = BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6));
};
process.on("exit", () => {
  const content = Buffer.concat([Buffer.from(times.buffer), Buffer.from(counts.buffer)]);
  fs.writeFileSync(path.join(process.env.PEERS_CALLS, String(process.pid)), content);
});

const batches = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};
const options = {
  preset: {
    worker: {
      connectionString,
      logger: new Logger(() => () => {}),
      ...(process.env.PEERS_OPTION === "batches" ? batches : {}),
    },
  },
  taskList: { noop: async ({ number }) => note(number) },
};

const timed = async (work) => {
  const utils = await makeWorkerUtils({ connectionString });
  await utils.withPgClient((client) => client.query("SELECT 1"));
  const began = performance.now();
  await work(utils);
  console.log(JSON.stringify({ seconds: (performance.now() - began) / 1000 }));
  await utils.release();
};

const verbs = {
  prepare: () => timed((utils) => utils.migrate()),
  load: () =>
    timed(async (utils) => {
      for (let start = 0; start < jobs; start += CHUNK) {
        const chunk = Array.from({ length: Math.min(CHUNK, jobs - start) }, (_, index) => ({
          identifier: "noop",
          payload: { number: start + index },
        }));
        await utils.addJobs(chunk);
      }
    }),
  work: async () => {
    await runOnce(options);
    console.log(JSON.stringify({ recorded: Date.now() / 1000 }));
  },
  listen: async () => {
    const runner = await run({ ...options, noHandleSignals: true });
    process.once("SIGTERM", async () => {
      await runner.stop();
      process.exit(0);
    });
    await runner.promise;
  },
  enqueue: () =>
    timed(async (utils) => {
      for (let number = 0; number < jobs; number += 1) {
        if (pause) {
          await sleep(1000 * pause * (0.5 + Math.random()));
          note(number);
        }
        await utils.addJob("noop", { number });
      }
    }),
};

verbs[process.argv[2]]();
