;; Denies and tells in which order _start and wapc_init were called: the message is "initialised:
;; 12" when it was in this order, once each.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 64) "{\"accepted\":false,\"message\":\"initialised: 00\"}")
  (global $next (mut i32) (i32.const 106))
  (func $note (param $digit i32)
    (i32.store8 (global.get $next) (local.get $digit))
    (global.set $next (i32.add (global.get $next) (i32.const 1))))
  (func (export "_start") (call $note (i32.const 49)))
  (func (export "wapc_init") (call $note (i32.const 50)))

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (call $respond (i32.const 64) (i32.const 46))
    (i32.const 1)))
