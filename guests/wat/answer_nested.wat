;; Settings are fine; validate answers with a mutated object of arrays nested 100,000 deep.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 4)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 64) "{\"accepted\":true,\"mutated_object\":{\"a\":")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (memory.fill (i32.const 103) (i32.const 91) (i32.const 100000))
    (memory.fill (i32.const 100103) (i32.const 93) (i32.const 100000))
    ;; The closing braces.
    (i32.store16 (i32.const 200103) (i32.const 0x7d7d))
    (call $respond (i32.const 64) (i32.const 200041))
    (i32.const 1)))
