;; Settings are fine; validate takes one page of memory after the other and writes to it, until
;; it gets no more. Then it traps, as an allocator does that runs out of memory.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (local $page i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (loop $more
      (local.set $page (memory.grow (i32.const 1)))
      (if (i32.eq (local.get $page) (i32.const -1)) (then unreachable))
      (memory.fill (i32.mul (local.get $page) (i32.const 65536)) (i32.const 1) (i32.const 65536))
      (br $more))
    unreachable))
