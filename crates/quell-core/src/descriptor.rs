//! Query and descriptors: a description of a request.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

use crate::account::Account;
use crate::cost::Cost;

/// A domain and one or more descriptors.
///
/// ```
/// use quell_core::descriptor::Query;
/// let query = Query::new("shop").entry("method", "POST").entry("path", "/login");
/// assert_eq!(query.descriptors()[0].get("path"), Some(&b"/login"[..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    domain: Cow<'a, str>,
    descriptors: Vec<Descriptor<'a>>,
    context: Cow<'a, [u8]>,
    account: Account,
}

impl<'a> Query<'a> {
    /// A query with one descriptor, which has no entries yet and costs 1.
    #[must_use]
    pub fn new(domain: impl Into<Cow<'a, str>>) -> Self {
        Self::with_descriptors(domain, Vec::from([Descriptor::new()]))
    }

    /// A query with these descriptors.
    #[must_use]
    pub fn with_descriptors(
        domain: impl Into<Cow<'a, str>>,
        descriptors: Vec<Descriptor<'a>>,
    ) -> Self {
        Self {
            domain: domain.into(),
            descriptors,
            context: Cow::Borrowed(&[]),
            account: Account::NONE,
        }
    }

    /// Adds an entry to the last descriptor.
    #[must_use]
    pub fn entry(mut self, name: impl Into<Cow<'a, str>>, value: impl IntoValue<'a>) -> Self {
        if let Some(last) = self.descriptors.last_mut() {
            last.push(name, value);
        }
        self
    }

    /// Sets the cost of the last descriptor.
    #[must_use]
    pub fn cost(mut self, cost: Cost) -> Self {
        if let Some(last) = self.descriptors.last_mut() {
            last.cost = cost;
        }
        self
    }

    /// The domain whose rules apply.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The same query with owned values.
    #[must_use]
    pub fn into_owned(self) -> Query<'static> {
        let descriptors = self.descriptors.into_iter();
        Query {
            domain: Cow::Owned(self.domain.into_owned()),
            descriptors: descriptors.map(Descriptor::into_owned).collect(),
            context: Cow::Owned(self.context.into_owned()),
            account: self.account,
        }
    }

    /// Sets what else the request says, such as its header fields. Nothing is decided by it: it is for
    /// observers, who get it with the query.
    pub fn set_context(&mut self, context: impl Into<Cow<'a, [u8]>>) {
        self.context = context.into();
    }

    /// Context as [`Self::set_context`] set it; empty by default.
    #[must_use]
    pub fn context(&self) -> &[u8] {
        &self.context
    }

    /// Sets whose part of scarce places the call takes up, beside its domain's.
    pub const fn set_account(&mut self, account: Account) {
        self.account = account;
    }

    /// Account as [`Self::set_account`] set it; [`Account::NONE`] by default.
    #[must_use]
    pub const fn account(&self) -> Account {
        self.account
    }

    /// The descriptors of the request.
    #[must_use]
    pub fn descriptors(&self) -> &[Descriptor<'a>] {
        &self.descriptors
    }
}

/// Entries that describe a request, and its cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor<'a> {
    entries: Vec<Entry<'a>>,
    /// Units to charge; default 1.
    pub cost: Cost,
    /// True if 0 units are charged in place of the cost. Only limits with an overdraft
    /// ([`fixed_window`](crate::algorithm::fixed_window)) apply to such a descriptor.
    pub is_check: bool,
}

/// A name and a value: any bytes are a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The entry's name, as rules match on it.
    pub name: Cow<'a, str>,
    /// Its value.
    pub value: Cow<'a, [u8]>,
}

impl<'a> Descriptor<'a> {
    /// No entries, cost 1.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
            cost: Cost::ONE,
            is_check: false,
        }
    }

    /// Adds an entry. If several entries have the same name, the first that is not empty counts.
    pub fn push(&mut self, name: impl Into<Cow<'a, str>>, value: impl IntoValue<'a>) {
        self.entries.push(Entry {
            name: name.into(),
            value: value.into_value(),
        });
    }

    /// The value of the entry `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let mut same = self.entries.iter().filter(|entry| entry.name == name);
        let first = same.next()?;
        let found = match first.value.is_empty() {
            true => same.find(|entry| !entry.value.is_empty()).unwrap_or(first),
            false => first,
        };
        Some(&found.value)
    }

    /// All entries.
    #[must_use]
    pub fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    fn into_owned(self) -> Descriptor<'static> {
        let entries = self.entries.into_iter().map(|entry| Entry {
            name: Cow::Owned(entry.name.into_owned()),
            value: Cow::Owned(entry.value.into_owned()),
        });
        Descriptor {
            entries: entries.collect(),
            cost: self.cost,
            is_check: self.is_check,
        }
    }
}

/// Types that can be the value of an entry: text or bytes, borrowed or owned.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no value of an entry",
    note = "a value is bytes or text: for a number write `number.to_string()`"
)]
pub trait IntoValue<'a> {
    /// The value as bytes.
    fn into_value(self) -> Cow<'a, [u8]>;
}

impl<'a> IntoValue<'a> for &'a str {
    fn into_value(self) -> Cow<'a, [u8]> {
        Cow::Borrowed(self.as_bytes())
    }
}

impl<'a> IntoValue<'a> for &'a [u8] {
    fn into_value(self) -> Cow<'a, [u8]> {
        Cow::Borrowed(self)
    }
}

impl<'a> IntoValue<'a> for String {
    fn into_value(self) -> Cow<'a, [u8]> {
        Cow::Owned(self.into_bytes())
    }
}

impl<'a> IntoValue<'a> for Vec<u8> {
    fn into_value(self) -> Cow<'a, [u8]> {
        Cow::Owned(self)
    }
}

impl<'a> IntoValue<'a> for Cow<'a, [u8]> {
    fn into_value(self) -> Cow<'a, [u8]> {
        self
    }
}
