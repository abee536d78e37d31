;; Uses the threads proposal: a shared memory and an atomic instruction.
(module
  (memory (export "memory") 1 1 shared)
  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (i32.atomic.load (i32.const 0))))
