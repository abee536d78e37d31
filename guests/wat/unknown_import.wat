;; Imports a function that no host has: `no_such_function` of module `portcullis_test`.
(module
  (import "portcullis_test" "no_such_function" (func (param i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (i32.const 0)))
