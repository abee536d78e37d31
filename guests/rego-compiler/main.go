// Compiles a policy in Rego to a WebAssembly module: `rego-compiler ENTRYPOINT POLICY MODULE`.
//
// This is `opa build --target wasm` without the rest of OPA, which takes several times as long to build: its server, its plugins, its shell.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/open-policy-agent/opa/v1/compile"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: rego-compiler ENTRYPOINT POLICY MODULE")
		os.Exit(2)
	}
	if err := build(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintf(os.Stderr, "error: failed to compile %s: %v\n", os.Args[2], err)
		os.Exit(1)
	}
}

func build(entrypoint, policy, module string) error {
	compiler := compile.New().
		WithTarget(compile.TargetWasm).
		WithEntrypoints(entrypoint).
		WithPaths(policy).
		// Of the bundle, only the module is of interest.
		WithOutput(io.Discard)
	if err := compiler.Build(context.Background()); err != nil {
		return err
	}
	modules := compiler.Bundle().WasmModules
	if len(modules) != 1 {
		return fmt.Errorf("one module was expected of entrypoint %s, and there are %d", entrypoint, len(modules))
	}
	return os.WriteFile(module, modules[0].Raw, 0o644)
}
