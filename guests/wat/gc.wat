;; Uses the garbage collection proposal: a struct type, and an instance of it.
(module
  (type $pair (struct (field i32) (field i32)))
  (memory (export "memory") 1)
  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (struct.get $pair 0 (struct.new $pair (i32.const 0) (i32.const 1)))))
