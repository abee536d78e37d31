;; Settings are fine; validate grows its memory to 125 MiB, or as far as it may, and then copies
;; all of it by one byte, again and again. A copy is one instruction: nothing inside it looks at
;; the time.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (local $size i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (drop (memory.grow (i32.const 1999)))
    (local.set $size (i32.mul (memory.size) (i32.const 65536)))
    (loop $again
      (memory.copy (i32.const 1) (i32.const 0) (i32.sub (local.get $size) (i32.const 1)))
      (br $again))
    unreachable))
