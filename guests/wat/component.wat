;; A component, where a core module is due.
(component
  (core module $policy
    (memory (export "memory") 1)
    (func (export "__guest_call") (param i32 i32) (result i32)
      (i32.const 0)))
  (core instance (instantiate $policy)))
