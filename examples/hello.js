// Prints a greeting from JavaScript.
//
//     belljar run examples/hello.js

const os = require('node:os');

console.log(`Hello from Node.js ${process.version}, under glass.`);
console.log(`I am user ${process.getuid()} on host ${os.hostname()}, in ${process.cwd()}.`);
