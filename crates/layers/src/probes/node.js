const libc = process.report && !process.report.getReport().header.glibcVersionRuntime ? "musl" : "gnu";
console.log(JSON.stringify({
  name: `node-${process.versions.node.split(".")[0]}-${process.versions.modules}`,
  version: process.versions.node,
  platform: `${process.arch}-linux-${libc}`,
  program: process.execPath,
  modules: [],
  packages: [],
  installer: [],
  paths: [],
}));
