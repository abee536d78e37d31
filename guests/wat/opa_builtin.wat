;; A template: a Rego policy that calls one builtin of its host with the same arguments again and again, and never ends by itself. Replace
;; {{BUILTIN}} by the builtin's name, {{FIRST}} and {{SECOND}} by two arguments, each a JSON text of less than 3 MiB as the inside of a
;; WebAssembly text string (`\hh` for a byte is always right).
(module
  (import "env" "memory" (memory 192))
  (import "env" "opa_builtin2" (func $builtin2 (param i32 i32 i32 i32) (result i32)))
  (export "memory" (memory 0))
  (data (i32.const 1024) "{\"{{BUILTIN}}\":7}\00")
  (data (i32.const 0x100000) "{{FIRST}}\00")
  (data (i32.const 0x400000) "{{SECOND}}\00")
  (func (export "builtins") (result i32) (i32.const 1024))
  ;; What the host writes, the input and the results of the builtin, is always written to the same place.
  (func (export "opa_malloc") (param i32) (result i32) (i32.const 0x700000))
  (func (export "opa_json_parse") (param i32 i32) (result i32) (i32.const 0x700000))
  ;; A value is the address of its text.
  (func (export "opa_json_dump") (param $value i32) (result i32) (local.get $value))
  (func (export "opa_eval_ctx_new") (result i32) (i32.const 0))
  (func (export "opa_eval_ctx_set_input") (param i32 i32))
  (func (export "opa_eval_ctx_set_data") (param i32 i32))
  (func (export "opa_eval_ctx_set_entrypoint") (param i32 i32))
  (func (export "eval") (param i32) (result i32)
    (loop $again
      (drop (call $builtin2 (i32.const 7) (i32.const 0) (i32.const 0x100000) (i32.const 0x400000)))
      (br $again))
    (unreachable))
  (func (export "opa_eval_ctx_get_result") (param i32) (result i32) (i32.const 1024)))
