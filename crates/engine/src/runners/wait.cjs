// Makes an initialized Node.js wait for its program until one byte arrives on standard input.
'use strict';

const fs = require('fs');

// Worker threads of the program load this file as well.
if (require('worker_threads').isMainThread) {
  // Hides this file from the program, and keeps its forks, which inherit the options, from waiting too.
  process.execArgv = [];
  delete require.cache[__filename];
  fs.writeSync(1, '+');
  // End of file: the parent is gone.
  if (fs.readSync(0, Buffer.alloc(1)) === 0) process.exit(0);
}
