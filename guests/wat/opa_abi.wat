;; The outside of a Rego policy, which has another calling convention: memory from `env`, and
;; eval instead of __guest_call.
(module
  (import "env" "memory" (memory 2))
  (import "env" "opa_abort" (func (param i32)))
  (export "memory" (memory 0))
  (global (export "opa_wasm_abi_version") i32 (i32.const 1))
  (global (export "opa_wasm_abi_minor_version") i32 (i32.const 3))
  (func (export "eval") (param i32) (result i32)
    (i32.const 0)))
