;; Finds all settings invalid and says nothing; accepts every request.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 32) "{\"accepted\":true}")
  (data (i32.const 64) "{\"valid\":false}")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then
        (call $respond (i32.const 64) (i32.const 15))
        (return (i32.const 1))))
    ;; validate
    (call $respond (i32.const 32) (i32.const 17))
    (i32.const 1)))
