"""Who may do what on a broker: Apache's ACL 1.0.

``rules`` is what ``plain_acl.yml`` says, ``addresses`` its white lists, ``needs`` which request needs what, ``control``
the check of every request.
"""
