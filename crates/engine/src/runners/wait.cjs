// Has Node.js wait, with everything set up but the program, until a byte comes on its standard input.
'use strict';

const fs = require('fs');

// Threads of the program's load this as well.
if (require('worker_threads').isMainThread) {
  // Nobody is to see it any more; and a fork of the program's, which gets the same options, is not to wait.
  process.execArgv = [];
  delete require.cache[__filename];
  fs.writeSync(1, '+');
  // Whoever would have given it something to do is gone.
  if (fs.readSync(0, Buffer.alloc(1)) === 0) process.exit(0);
}
