//! Selector: chooses the rules of a query where `match` cannot say which, such as in the format of another program.

use alloc::sync::Arc;
use core::any::Any;
use core::fmt;

use crate::descriptor::Descriptor;

/// Choice of at most one rule for each descriptor of a query, in place of the rules' own matchers.
pub trait Select: Any + fmt::Debug + Send + Sync {
    /// Calls `chosen` with the index of each descriptor that has a rule, in ascending order, and with the index of that
    /// rule in its domain. A descriptor without a rule is not limited.
    fn select(&self, descriptors: &[Descriptor<'_>], chosen: &mut dyn FnMut(usize, usize));

    /// Returns true if `other` chooses alike.
    fn is_same(&self, other: &dyn Select) -> bool;
}

/// Shared [`Select`] of a domain.
#[derive(Clone, Debug)]
pub struct Selector(Arc<dyn Select>);

impl Selector {
    /// A selector that chooses as `select` does.
    pub fn new(select: impl Select) -> Self {
        Self(Arc::new(select))
    }

    /// The choice as its own type; `None` if it is of another.
    #[must_use]
    pub fn get<S: Select>(&self) -> Option<&S> {
        let select: &dyn Any = &*self.0;
        select.downcast_ref()
    }

    pub(crate) fn select(
        &self,
        descriptors: &[Descriptor<'_>],
        chosen: &mut dyn FnMut(usize, usize),
    ) {
        self.0.select(descriptors, chosen);
    }
}

impl PartialEq for Selector {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.is_same(&*other.0)
    }
}

impl Eq for Selector {}
