//! What tests show: which of them ran and passed, and which rows of the fault catalogue and of the documentation they stand for.

pub(crate) mod catalogue;
pub(crate) mod compatibility;
pub(crate) mod count;
pub(crate) mod environments;
pub(crate) mod outcomes;
pub(crate) mod page;
pub(crate) mod pages;
pub(crate) mod runs;
pub(crate) mod sources;
