//! The access rights (ACL) of new znodes. A new znode gets a copy of the ACL of the znode `records` or `wake` above it.
//! These two have the ACL of the path in the URL. So each user with access to this path can use all records.

use quorate::node::Fault;
use zookeeper_client::{Acl, AuthId, Client};

use crate::address::{Address, User};
use crate::fault;

/// Reads the ACL of the znode at `path`. New znodes below `path` get the same ACL.
pub(crate) async fn read_acl(
    client: &Client,
    path: &str,
    address: &Address,
) -> Result<Vec<Acl>, Fault> {
    let result = client.get_acl(path).await;
    let (acl, _) = result.map_err(|error| fault::classify_request_error(&error, path, address))?;
    copy_acl(&acl, address.user.as_ref()).ok_or_else(|| {
        let why = format!(
            "cannot give new znodes the ACL of {path}: the server hides the passwords in this ACL from the user in the \
             URL; give this user the permission ADMIN on {path}"
        );
        Fault::Denied(why.into())
    })
}

/// Copies the ACL of a znode for a new znode below it. `None` if the ACL contains a hidden password of a user other
/// than `user`, because such an entry cannot be copied.
///
/// The server hides all passwords in an ACL from users without the permission ADMIN.
fn copy_acl(acl: &[Acl], user: Option<&User>) -> Option<Vec<Acl>> {
    let copies = acl.iter().map(|entry| {
        let hidden_user = entry
            .id()
            .strip_suffix(":x")
            .filter(|_| entry.scheme() == "digest");
        match (hidden_user, user) {
            (None, _) => Some(entry.clone()),
            (Some(name), Some(user)) if name == user.name => {
                Some(Acl::new(entry.permission(), AuthId::authed()))
            }
            (Some(_), _) => None,
        }
    });
    copies.collect()
}

/// Whether an ACL from [`read_acl`] can be written to existing znodes. False if it has an entry with the scheme `auth`,
/// because `auth` stands for the user that writes the ACL.
pub(crate) fn is_complete(acl: &[Acl]) -> bool {
    acl.iter().all(|entry| entry.scheme() != "auth")
}

#[cfg(test)]
mod tests {
    use zookeeper_client::Permission;

    use super::*;

    fn digest(id: &str) -> Acl {
        Acl::new(Permission::ALL, AuthId::new("digest", id))
    }

    #[test]
    fn acl_with_another_users_hidden_password_is_not_copied() {
        let user = |name: &str| User {
            name: name.to_owned(),
            password: "s3cret".to_owned(),
        };
        let (ann, bob) = (user("ann"), user("bob"));
        let acl = [digest("ann:MTIz"), digest("bob:NDU2")];
        assert_eq!(copy_acl(&acl, Some(&ann)).as_deref(), Some(&acl[..]));
        let hidden_acl = [
            digest("ann:x"),
            Acl::new(Permission::READ, AuthId::anyone()),
        ];
        let copied = copy_acl(&hidden_acl, Some(&ann)).expect("a copy");
        assert_eq!((copied[0].scheme(), copied[0].id()), ("auth", ""));
        assert_eq!(copied[1], hidden_acl[1]);
        assert!(is_complete(&acl) && !is_complete(&copied));
        assert_eq!(copy_acl(&hidden_acl, Some(&bob)), None);
        assert_eq!(copy_acl(&hidden_acl, None), None);
    }
}
