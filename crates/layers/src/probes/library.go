// Compiles the standard library into the build cache.
package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

func main() {
	build := exec.Command(filepath.Join(runtime.GOROOT(), "bin", "go"), "build", "std")
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	if build.Run() != nil {
		os.Exit(1)
	}
}
