//! The access rights (ACL) of new znodes: each znode gets the ACL of the znode above it. So all users that the ACL of
//! the path admits can use all records, whichever of them created a record.

use quorate::node::Fault;
use zookeeper_client::{Acl, AuthId, Client};

use crate::address::{Address, User};
use crate::fault;

/// Reads the ACL of the znode at `path`, which new znodes below it get.
pub(crate) async fn read(
    client: &Client,
    path: &str,
    address: &Address,
) -> Result<Vec<Acl>, Fault> {
    let read = client.get_acl(path).await;
    let (acl, _) = read.map_err(|error| fault::of_request(&error, path, address))?;
    copy(&acl, address.user.as_ref()).ok_or_else(|| {
        let why = format!(
            "{path} admits several users, and this user cannot read its ACL, which new znodes get: give the user the \
             permission ADMIN on {path}"
        );
        Fault::Denied(why.into())
    })
}

/// The ACL of a new znode below a znode with this ACL. A server hides the passwords in an ACL from a user without the
/// permission ADMIN. An entry with a hidden password can be copied only if it is the entry of this user. `None` if
/// another entry has a hidden password.
fn copy(acl: &[Acl], user: Option<&User>) -> Option<Vec<Acl>> {
    let copies = acl.iter().map(|one| {
        let hidden = one
            .id()
            .strip_suffix(":x")
            .filter(|_| one.scheme() == "digest");
        match (hidden, user) {
            (None, _) => Some(one.clone()),
            (Some(name), Some(user)) if name == user.name => {
                Some(Acl::new(one.permission(), AuthId::authed()))
            }
            (Some(_), _) => None,
        }
    });
    copies.collect()
}

/// Whether an ACL that [`read`] returned names every user explicitly. False if it contains an entry `auth`, which means
/// the user that writes the ACL: on a znode of another user it would name the wrong user.
pub(crate) fn is_complete(acl: &[Acl]) -> bool {
    acl.iter().all(|one| one.scheme() != "auth")
}

#[cfg(test)]
mod tests {
    use zookeeper_client::Permission;

    use super::*;

    fn digest(id: &str) -> Acl {
        Acl::new(Permission::ALL, AuthId::new("digest", id))
    }

    #[test]
    fn acl_with_hidden_passwords_is_copied_only_if_all_of_them_belong_to_this_user() {
        let user = |name: &str| User {
            name: name.to_owned(),
            password: "s3cret".to_owned(),
        };
        let (ann, bob) = (user("ann"), user("bob"));
        let both = [digest("ann:MTIz"), digest("bob:NDU2")];
        assert_eq!(copy(&both, Some(&ann)).as_deref(), Some(&both[..]));
        let hidden = [
            digest("ann:x"),
            Acl::new(Permission::READ, AuthId::anyone()),
        ];
        let own = copy(&hidden, Some(&ann)).expect("a copy");
        assert_eq!((own[0].scheme(), own[0].id()), ("auth", ""));
        assert_eq!(own[1], hidden[1]);
        assert!(is_complete(&both) && !is_complete(&own));
        assert_eq!(copy(&hidden, Some(&bob)), None);
        assert_eq!(copy(&hidden, None), None);
    }
}
