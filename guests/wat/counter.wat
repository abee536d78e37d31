;; Denies with the number of calls that this instance has seen, kept in a global and in memory:
;; with a fresh instance for every call the message is always "call 1 by global, call 1 by
;; memory". Calls of all operations count; from ten on, the digit is another character.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 64) "{\"accepted\":false,\"message\":\"call 0 by global, call 0 by memory\"}")
  (global $calls (mut i32) (i32.const 48))

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    ;; The digits are characters, from "0" on. The one in memory is part of the answer.
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    (i32.store8 (i32.const 98) (global.get $calls))
    (i32.store8 (i32.const 116) (i32.add (i32.load8_u (i32.const 116)) (i32.const 1)))
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (call $respond (i32.const 64) (i32.const 65))
    (i32.const 1)))
