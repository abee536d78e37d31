;; Imports two functions that no host has: `first_of_two` and `second_of_two` of module `portcullis_test`.
(module
  (import "portcullis_test" "first_of_two" (func (param i32) (result i32)))
  (import "portcullis_test" "second_of_two" (func (param i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (i32.const 0)))
