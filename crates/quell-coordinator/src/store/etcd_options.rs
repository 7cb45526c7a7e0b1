//! Credentials for etcd. These are here also in a build without it, so that a command line is the same
//! in both.

/// Certificates for the connections to etcd, in PEM.
#[derive(Clone, Default)]
pub struct EtcdTls {
    /// The authority that signed etcd's certificates; the system's authorities if there is none.
    pub authority: Option<Vec<u8>>,
    /// The certificate and key of this client, if etcd asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").finish_non_exhaustive()
    }
}

/// Access to etcd.
#[derive(Clone, Default)]
pub struct EtcdOptions {
    /// Name and password, if etcd's authentication is on.
    pub user: Option<(String, String)>,
    /// Certificates, for endpoints that begin with `https://`.
    pub tls: Option<EtcdTls>,
}

impl std::fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("EtcdOptions")
            .field("user", &user)
            .finish_non_exhaustive()
    }
}
