"""A cluster dressed as a site: what ``hidl cluster up --like SITE`` adds.

::

    of_site      the site's file as a ``Dress``: hosts, partitions, limits, rules
    libraries    a prefix for each MPI library that the site names, from an MPI that is at hand
    modules      Lmod's tree of the modules that the site names
    programs     the programs that are not the true ones
    surroundings what users find on the login host: variables, PATH
    users        directories of the twin's users
    truth        what is true of a twin, and what is not
"""
