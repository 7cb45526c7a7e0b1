//! An etcd for one test, and stores on it.

use quell_coordinator::store::{EtcdOptions, EtcdStore};
use quell_testkit::etcd::Etcd as Member;

pub(crate) use quell_testkit::wait::PATIENCE;

/// A cluster that is stopped when it is dropped.
pub(crate) struct Etcd {
    pub(crate) members: Vec<Member>,
}

impl Etcd {
    fn new(members: impl Into<Vec<Member>>) -> Self {
        Self {
            members: members.into(),
        }
    }

    pub(crate) fn start() -> Self {
        Self::new([Member::start()])
    }

    pub(crate) fn three() -> Self {
        Self::new(Member::three())
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.members.iter().map(Member::endpoint).collect()
    }

    pub(crate) fn store(&self) -> EtcdStore {
        EtcdStore::new(self.urls(), EtcdOptions::default()).unwrap()
    }

    /// Kills a member.
    pub(crate) fn kill(&mut self, at: usize) {
        self.members[at].kill();
    }

    /// The member that leads the cluster.
    pub(crate) fn leader(&self) -> usize {
        quell_testkit::wait::until("etcd elects a leader", || {
            self.members.iter().position(Member::leads)
        })
    }

    /// Output of `etcdctl`, of the first member that does as it says.
    pub(crate) fn ctl(&self, words: &[&str]) -> String {
        let mut runs = self.members.iter().map(|member| member.ctl(words));
        let done = runs.find(|run| run.status.success());
        done.unwrap_or_else(|| panic!("etcdctl {words:?} failed"))
            .stdout
    }
}
