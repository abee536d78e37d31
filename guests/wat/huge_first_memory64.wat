;; Asks for 8 GiB at the start, with 64-bit addresses.
(module
  (memory (export "memory") i64 131072)
  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (i32.const 0)))
