;; Touches nearly all the memory that it may by default, 127 of 128 MiB, when it checks its settings and when it validates; then
;; settings are fine, and it accepts every request.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 32) "{\"accepted\":true}")

  (func $touch
    (if (i32.eq (memory.grow (i32.const 2031)) (i32.const -1)) (then unreachable))
    (memory.fill (i32.const 65536) (i32.const 1) (i32.const 133103616)))

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (call $touch)
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (call $respond (i32.const 32) (i32.const 17))
    (i32.const 1)))
