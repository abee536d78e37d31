;; Imports a function of the protocol with another signature.
(module
  (import "wapc" "__guest_request" (func (param i64 i64) (result i64)))
  (memory (export "memory") 1)
  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (i32.const 0)))
