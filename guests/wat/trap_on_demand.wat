;; Settings are fine; validate traps when the payload holds the bytes trap-me, and accepts
;; otherwise.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wapc" "__guest_request" (func $request (param i32 i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 32) "{\"accepted\":true}")
  (data (i32.const 64) "trap-me")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (local $at i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (drop (memory.grow (i32.add (i32.shr_u (local.get $len) (i32.const 16)) (i32.const 1))))
    (call $request (i32.const 1024) (i32.const 65536))
    ;; Compares eight bytes at each place with `trap-me`, the last of them masked.
    (loop $next
      (if (i64.eq
            (i64.and (i64.load (i32.add (i32.const 65536) (local.get $at))) (i64.const 0xffffffffffffff))
            (i64.load (i32.const 64)))
        (then unreachable))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $len))))
    (call $respond (i32.const 32) (i32.const 17))
    (i32.const 1)))
